from headwater.kernels import jit, warming
from headwater.kernels.sources import PACKAGE


def test_warming_leaves_no_kernel_uncompiled_and_tells_what_it_did() -> None:
    lines: list[str] = []
    warmed = warming.warm(lines.append)
    assert [each.module for each in warmed] == warming.kernel_modules()
    assert lines[-1].startswith("kernels: ")
    cold = [name for name, built in jit.built_kernels() if name.startswith("headwater.") and not built.signatures]
    assert cold == []


def test_every_module_with_a_kernel_is_warmed_and_no_other() -> None:
    sources = {path.stem: path.read_text() for path in PACKAGE.glob("*.py")}
    with_kernels = {name for name, text in sources.items() if "\n@kernel" in text or "\n@inline_kernel" in text}
    assert with_kernels - warming.NOT_KERNELS <= set(warming.kernel_modules())
    assert not {"jit", "guard", "warming", "machine"} & set(warming.kernel_modules())
