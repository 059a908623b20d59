"""The native build: what it makes, that it rebuilds only what changed, and how it fails."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import build

from .conftest import KERNEL, ROOT, Project


def stamps(project: Project) -> dict[str, int]:
    files = (path for path in project.native.rglob("*") if path.is_file())
    return {str(path.relative_to(project.native)): path.stat().st_mtime_ns for path in files}


def test_what_a_build_makes(project: Project) -> None:
    result = project.build("--baseline")
    assert result.returncode == 0, result.stdout
    assert set(stamps(project)) == {
        "libfoxhunt_hostsim.so", "libfoxhunt_trace.so", "libfoxhunt_dlpack.so", "host/scale.so", "host-baseline/scale.so",
        "kernels.json", "abi/types.h", "abi/scale.h",
    }  # fmt: skip
    index = json.loads((project.native / "kernels.json").read_text())
    assert index == {"scale": {"image": "scale", "args": "scale_args", "form": "threads"}}
    dynamic = {
        name: subprocess.run(
            ["readelf", "-d", project.native / name], capture_output=True, text=True, check=True
        ).stdout
        for name in ("libfoxhunt_hostsim.so", "libfoxhunt_trace.so", "host/scale.so")
    }
    assert "soname: [libcuda.so.1]" in dynamic["libfoxhunt_trace.so"]
    assert "soname: [libcuda.so.1]" in dynamic["libfoxhunt_hostsim.so"]  # what cuda-python's dlopen is answered with
    assert "Shared library: [libcuda.so.1]" in dynamic["host/scale.so"]
    assert "RUNPATH" not in dynamic["host/scale.so"]
    assert "RPATH" not in dynamic["host/scale.so"]


def test_an_unchanged_tree_is_not_built_again_and_a_change_reaches_its_image_only(project: Project) -> None:
    other = KERNEL.replace("(scale)", "(twice)").replace("#define", "typedef scale_args twice_args;\n#define")
    project.write("cuda_src/math/other.cu", other)
    assert project.build().returncode == 0
    before = stamps(project)
    assert project.build().returncode == 0
    assert stamps(project) == before
    project.write("cuda_src/math/scale.cu", KERNEL.replace("*=", "+="))
    assert project.build().returncode == 0
    assert {name for name, stamp in stamps(project).items() if stamp != before[name]} == {"host/scale.so"}


def test_a_deleted_kernel_leaves_nothing_behind(project: Project) -> None:
    assert project.build().returncode == 0
    (project.root / "cuda_src/math/scale.cu").rename(project.root / "cuda_src/math/scale2.cu")
    result = project.build()
    assert result.returncode == 0, result.stdout
    assert {name for name in stamps(project) if name.startswith("host/")} == {"host/scale2.so"}


def test_what_does_not_compile_fails_the_build_but_not_the_other_images(project: Project) -> None:
    project.write("cuda_src/math/broken.cu", "FX_KERNEL(broken) { this is no C++ }\n")
    result = project.build()
    assert result.returncode == 1
    assert "error: the build failed" in result.stdout
    assert {name for name in stamps(project) if name.startswith("host/")} == {"host/scale.so"}


def test_two_kernels_of_one_name_are_refused(project: Project) -> None:
    project.write("cuda_src/math/other.cu", KERNEL)
    result = project.build()
    assert result.returncode == 1
    assert "error: kernel scale is in other.cu and in scale.cu: rename one" in result.stdout


def test_two_files_of_one_stem_are_refused(project: Project) -> None:
    project.write("cuda_src/other/scale.cu", KERNEL.replace("(scale)", "(unscale)"))
    result = project.build()
    assert result.returncode == 1
    assert "two kernel files are named scale.cu: rename one" in result.stdout


@pytest.mark.parametrize("plant", ["offset", "size"])
def test_a_layout_that_the_compiler_sees_differently_fails_the_build(project: Project, plant: str) -> None:
    """Planted in the reader: cffi's view of `n` or of the whole struct is made wrong."""
    path = project.root / "tools" / "layout_check.py"
    wrong = {
        "offset": ("{field.offset}", "{field.offset + 4 * (field.offset == 8)}"),
        "size": ("{info.size}", "{info.size + 8}"),
    }
    text = path.read_text()
    assert text.count(wrong[plant][0]) == 1
    path.write_text(text.replace(*wrong[plant]))
    result = project.build()
    assert result.returncode == 1
    assert "scale.h:1: scale_args" in result.stdout
    assert f": {plant}" in result.stdout


def test_a_header_that_breaks_a_rule_fails_the_build(project: Project) -> None:
    project.write(
        "cuda_src/abi/scale.h", "typedef struct {\n    float *x;\n    int32_t n;\n    float a;\n} scale_args;\n"
    )
    result = project.build()
    assert result.returncode == 1
    assert "abi/scale.h:2: x: a pointer needs an annotation" in result.stdout


def test_scan_finds_both_forms_at_line_starts_only(tmp_path: Path) -> None:
    (tmp_path / "hostsim").mkdir()
    (tmp_path / "hostsim" / "ignored.cu").write_text("FX_KERNEL(ignored) {}\n")
    (tmp_path / "two.cu").write_text(
        "// FX_KERNEL(commented)\n  FX_KERNEL(indented) {}\nFX_KERNEL(a) {}\nFX_KERNEL_BOUNDS(b, 128) {}\n"
        "FX_KERNEL_ANYBLOCK(c) {}\n"
    )
    found = build.scan_kernels(tmp_path)
    assert {name: entry["form"] for name, entry in found.items()} == {"a": "threads", "b": "threads", "c": "anyblock"}
    assert {entry["image"] for entry in found.values()} == {"two"}


@pytest.mark.parametrize(
    ("text", "archs"),
    [
        ("90", ["90"]), ("sm_90,8.0", ["80", "90"]), ("100;90 120", ["90", "100", "120"]), ("", []), ("90a", ["90a"]),
        ("all", ["80", "86", "89", "90", "100", "120"]),
    ],
)  # fmt: skip
def test_architectures_from_the_environment(monkeypatch: pytest.MonkeyPatch, text: str, archs: list[str]) -> None:
    monkeypatch.setenv("FOXHUNT_CUDA_ARCHS", text)
    assert build.archs_from_environment() == archs
    assert build.default_archs() == archs


def test_architectures_default_to_the_local_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FOXHUNT_CUDA_ARCHS", raising=False)
    monkeypatch.setattr(build.toolkit, "local_archs", lambda: ["90"])
    assert build.default_archs() == ["90"]


def test_a_wrong_architecture_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOXHUNT_CUDA_ARCHS", "hopper")
    with pytest.raises(build.BuildError, match="'hopper' is no architecture; write for example 80,90"):
        build.archs_from_environment()


@pytest.mark.parametrize("name", ["nvcc", "cuda.h"])
def test_a_missing_toolkit_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(build.toolkit, "_toolkit_roots", list)
    monkeypatch.delenv("FOXHUNT_NVCC", raising=False)
    monkeypatch.delenv("FOXHUNT_CUDA_INCLUDE", raising=False)
    require = {"nvcc": build.toolkit.require_nvcc, "cuda.h": build.toolkit.require_cuda_include}[name]
    with pytest.raises(build.toolkit.ToolkitError, match=rf"no {name} .*pip install 'nvidia-cuda-"):
        require()


def test_every_kernel_source_of_the_package_is_known_to_the_build() -> None:
    images = {entry["image"] for entry in build.scan_kernels().values()}
    assert images == {path.stem for path in (ROOT / "cuda_src").rglob("*.cu") if "hostsim" not in path.parts}
