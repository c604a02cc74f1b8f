"""How kernels are built: where machine code lies, when it is found again, and the checked build."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba.core import config

from headwater.kernels import index, jit, sources

CALLER = """
import sys
import numpy as np
from headwater.kernels import jit
jit.source_hash = lambda: {hash!r}
sys.path.insert(0, {folder!r})
import caller
print(caller.call(np.int64(1)), sum(caller.call.stats.cache_hits.values()))
"""


def python(code: str, **environment: str) -> list[str]:
    """Run code in a process of its own; the words it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=os.environ | environment, capture_output=True, text=True, check=True, timeout=240,
    )  # fmt: skip
    return done.stdout.split()


def test_an_edited_callee_is_compiled_into_its_caller_anew(tmp_path: Path) -> None:
    cache, package = str(tmp_path / "cache"), tmp_path / "package"
    package.mkdir()
    (package / "caller.py").write_text(
        "from headwater.kernels.builds import kernel\nfrom callee import add\n@kernel\ndef call(n): return add(n)\n"
    )

    def run() -> list[str]:
        code = CALLER.format(hash=sources.source_hash((package,)), folder=str(package))
        return python(code, HEADWATER_CACHE=cache, PYTHONDONTWRITEBYTECODE="1")

    callee = "from headwater.kernels.builds import inline_kernel\n@inline_kernel\ndef add(n): return n + {}\n"
    (package / "callee.py").write_text(callee.format(10))
    assert run() == ["11", "0"]
    assert run() == ["11", "1"]
    (package / "callee.py").write_text(callee.format(20))
    assert run() == ["21", "0"]


def test_a_kernel_for_kernels_refuses_python_and_does_not_end_its_process() -> None:
    key, table = np.frombuffer(b"key", np.uint8), np.zeros((1, index.FIELDS), np.uint64)
    arguments = table, 0, np.uintp(key.ctypes.data), np.uintp(len(key))
    assert 0 < index.hash_of(table, 0, key) < 1 << 32  # so that there is machine code for such arguments
    with pytest.raises(TypeError, match=r"^headwater\.kernels\.index\.key_hash is for kernels; Python can't call it$"):
        index.key_hash(*arguments)


def test_the_cache_lies_where_the_user_keeps_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HEADWATER_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert jit.cache_home() == tmp_path / "headwater"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/of/someone")
    assert jit.cache_home() == Path("/home/of/someone/.cache/headwater")
    monkeypatch.setenv("HEADWATER_CACHE", "/elsewhere")
    assert jit.cache_home() == Path("/elsewhere")


def test_only_the_caches_used_last_are_kept(tmp_path: Path) -> None:
    for age in range(5):
        folder = tmp_path / f"kernels-{age}"
        folder.mkdir()
        (folder / "code").write_bytes(b"x")
        os.utime(folder, (1000 - age, 1000 - age))
    (tmp_path / "other").mkdir()
    gone = jit.prune(tmp_path, keep=2)
    assert [path.name for path in gone] == ["kernels-2", "kernels-3", "kernels-4"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kernels-0", "kernels-1", "other"]


def test_without_a_folder_to_write_kernels_still_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    code = (
        "import tempfile; tempfile.tempdir = '/proc/nope'\n"
        "from headwater.kernels import jit, scan; print(jit.cache_folder(), scan.scan(b'').consumed)"
    )
    assert python(code, HEADWATER_CACHE=str(tmp_path / "file" / "below")) == ["None", "0"]


def test_where_the_usual_folder_cannot_be_written_a_temporary_one_of_this_user_is_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    code = (
        f"import tempfile; tempfile.tempdir = {str(tmp_path)!r}\n"
        "from headwater.kernels import cached, jit; print(jit.cache_folder().parent.name, cached.compiling.remark)"
    )
    home, *remark = python(code, HEADWATER_CACHE=str(tmp_path / "file" / "below"))
    assert home == f"headwater-{os.getuid()}"
    assert "Not a directory" in " ".join(remark)
    assert "HEADWATER_CACHE names another folder" in " ".join(remark)
    assert (tmp_path / home).stat().st_mode & 0o777 == 0o700


def test_code_is_not_loaded_from_a_temporary_folder_that_others_may_write_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    home = jit.temporary_home()
    home.chmod(0o777)
    with pytest.raises(PermissionError, match="is not this user's alone"):
        jit.temporary_home()
    home.rmdir()
    home.symlink_to(tmp_path)
    with pytest.raises(PermissionError, match="is not this user's alone"):
        jit.temporary_home()


KERNEL = """
import sys
import numpy as np
from headwater.kernels import jit
jit.source_hash = lambda: "0" * 16
sys.path.insert(0, sys.argv[1])
import once
once.call(np.int64(1))
print(once.call(np.int64(1)), sum(once.call.stats.cache_hits.values()), sum(once.call.stats.cache_misses.values()))
"""
ONCE = "from headwater.kernels.builds import kernel\n@kernel\ndef call(n): return n + 1\n"


def test_another_environment_finds_what_the_first_compiled(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "once.py").write_text(ONCE)
    os.utime(tmp_path / "two" / "once.py", (1, 1))
    told = [
        subprocess.run(
            [sys.executable, "-c", KERNEL, str(tmp_path / name)],
            env=os.environ | {"HEADWATER_CACHE": str(tmp_path / "cache")},
            capture_output=True, text=True, check=True, timeout=280,
        )
        for name in ("one", "two")
    ]  # fmt: skip
    assert [each.stdout.split() for each in told] == [["2", "0", "1"], ["2", "1", "0"]]
    assert told[0].stderr.startswith("headwater: compiling kernels for this machine, once")
    assert f"They are kept in {tmp_path / 'cache'}" in told[0].stderr
    assert told[1].stderr == ""


def test_of_processes_that_start_together_one_compiles_and_the_others_wait(tmp_path: Path) -> None:
    (tmp_path / "once.py").write_text(ONCE)
    environment = os.environ | {"HEADWATER_CACHE": str(tmp_path / "cache")}
    asked = [sys.executable, "-c", KERNEL, str(tmp_path)]
    together = [subprocess.Popen(asked, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    told = [process.communicate(timeout=280)[0].split() for process in together]
    assert sorted(each[0] for each in told) == ["2"] * 4
    assert sum(int(each[2]) for each in told) == 1


def test_an_entry_that_is_damaged_is_compiled_anew(tmp_path: Path) -> None:
    (tmp_path / "once.py").write_text(ONCE)
    run = [sys.executable, "-c", KERNEL, str(tmp_path)]
    environment = os.environ | {"HEADWATER_CACHE": str(tmp_path / "cache")}
    for misses in ("1", "1", "0"):
        told = subprocess.run(run, env=environment, capture_output=True, text=True, check=True, timeout=280)
        assert told.stdout.split()[2] == misses
        if misses == "1" and not (tmp_path / "seen").exists():
            (tmp_path / "seen").touch()
            for entry in (tmp_path / "cache").rglob("*.nb?"):
                entry.write_bytes(b"x" * 7)


def test_a_cache_that_can_only_be_read_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADWATER_CACHE", str(tmp_path))
    jit.cache_folder.cache_clear()
    try:
        folder = jit.cache_folder()
        assert folder is not None
        (folder / "entry").touch()
        monkeypatch.setattr(os, "access", lambda *asked: False)
        monkeypatch.setattr(Path, "mkdir", lambda *asked, **how: pytest.fail("it is not written to"))
        jit.cache_folder.cache_clear()
        assert jit.cache_folder() == folder
    finally:
        jit.cache_folder.cache_clear()


def test_other_users_of_numba_keep_their_cache_folder() -> None:
    before = config.CACHE_DIR  # type: ignore[attr-defined]
    jit.kernel(lambda n: n)
    assert before == config.CACHE_DIR  # type: ignore[attr-defined]
