"""Toolchains of others, and what is built with them: outside of the tree, once for each state of its sources."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headwater.kernels.jit import cache_home

BUILD_SECONDS_MAX = 540
CLASSPATH = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath"
SOURCES = {".go", ".mod", ".sum", ".java", ".xml", ".json", ".js", ".rs", ".toml", ".lock"}
RUSTUP = Path.home() / ".cargo" / "bin"
"""The folder of what rustup installs, which is in the PATH of login shells only."""


def found(command: str) -> str | None:
    """The path of a command; None if it is not there."""
    return shutil.which(command, path=os.pathsep.join([os.environ.get("PATH", os.defpath), str(RUSTUP)]))


@dataclass(frozen=True)
class Tool:
    """A toolchain that a program of others needs: its commands, and how to get them."""

    name: str
    commands: tuple[str, ...]
    get: str

    @property
    def missing(self) -> str:
        """Which command is not there and how to get it; empty if all are."""
        lacking = [command for command in self.commands if found(command) is None]
        return f"{self.name}: no `{lacking[0]}` here; {self.get}" if lacking else ""


GO = Tool("Go 1.24 or newer", ("go",), "apt-get install golang, or brew install go")
JAVA = Tool(
    "Java 17 with Maven", ("mvn", "javac"), "apt-get install openjdk-17-jdk-headless maven, or brew install maven"
)
NODE = Tool("Node.js 18 or newer", ("node", "npm"), "apt-get install nodejs npm, or brew install node")
RUST = Tool(
    "Rust 1.88 or newer with a C compiler", ("cargo", "cc", "cmake"), "https://rustup.rs, and apt-get install gcc cmake"
)
LIBMEMCACHED = Tool("libmemcached", ("memccapable",), "apt-get install libmemcached-tools")


def needs(tool: Tool) -> pytest.MarkDecorator:
    """Skip a test where the tool is missing, and say how to get it."""
    return pytest.mark.skipif(bool(tool.missing), reason=tool.missing)


said: Callable[[str], None] = lambda _line: None  # noqa: E731 -- the table puts its own in
"""Who is told what takes long."""


def say_by(listener: Callable[[str], None]) -> None:
    """Let somebody hear of what is being built."""
    global said  # noqa: PLW0603 -- one listener for a run
    said = listener


def go_program(folder: Path) -> str:
    """Build the Go program of a folder; returns its path."""

    def build(target: Path) -> None:
        _run(["go", "build", "-o", str(target / "program"), "."], folder)

    return str(_built(folder, "Go", build) / "program")


def java_program(folder: Path) -> str:
    """Compile the Java program of a folder; returns its class path."""

    def build(target: Path) -> None:
        paths = [f"-DbuildDirectory={target}", f"-Dmdep.outputFile={target / 'jars'}"]
        _run(["mvn", "-q", "-B", "-f", str(folder / "pom.xml"), *paths, "compile", CLASSPATH], folder)

    target = _built(folder, "Maven", build)
    return os.pathsep.join([str(target / "classes"), (target / "jars").read_text("utf-8").strip()])


def node_program(folder: Path, script: str) -> str:
    """Install what the Node.js program of a folder needs, beside a copy of it; returns the copy's path."""

    def build(target: Path) -> None:
        for name in ("package.json", "package-lock.json", script):
            shutil.copy(folder / name, target / name)
        # Not `ci`: it wants every platform's binary in the lock file, and not every registry has all of them.
        _run(["npm", "install", "--no-save", "--no-audit", "--no-fund", "--loglevel=error"], target)

    return str(_built(folder, "npm", build) / script)


def rust_program(folder: Path) -> str:
    """Build the Rust program of a folder; returns its path."""

    def build(target: Path) -> None:
        cargo = found("cargo")
        assert cargo is not None
        _run([cargo, "build", "--quiet", "--locked", "--target-dir", str(target / "built")], folder)
        shutil.copy(target / "built" / "debug" / "program", target / "program")
        shutil.rmtree(target / "built")  # hundreds of MiB

    return str(_built(folder, "Cargo", build) / "program")


def printed_go(text: str, manifest: Path, folder: Path) -> list[str]:
    """Build a Go program as a page prints it, with the modules that another folder's manifest pins; its command."""
    for name in ("go.mod", "go.sum"):
        shutil.copy(manifest / name, folder / name)
    (folder / "main.go").write_text(text, "utf-8")
    _run(["go", "build", "-o", "program", "."], folder)
    return [str(folder / "program")]


def printed_java(text: str, manifest: Path, folder: Path) -> list[str]:
    """Compile a Java program as a page prints it, with what another folder's manifest pins; its command."""
    path = java_program(manifest)
    named = re.search(r"public class (\w+)", text)
    assert named is not None
    (folder / f"{named[1]}.java").write_text(text, "utf-8")
    _run(["javac", "-cp", path, f"{named[1]}.java"], folder)
    return ["java", "-cp", os.pathsep.join([str(folder), path]), named[1]]


def printed_node(text: str, manifest: Path, script: str, folder: Path) -> list[str]:
    """Put down a Node.js program as a page prints it, beside what another folder's manifest pins; its command."""
    (folder / "node_modules").symlink_to(Path(node_program(manifest, script)).parent / "node_modules")
    (folder / "program.js").write_text(text, "utf-8")
    return ["node", str(folder / "program.js")]


def _built(folder: Path, how: str, build: Callable[[Path], None]) -> Path:
    """The folder of what was made of these sources, made now if it is not there; one process at a time makes it."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.suffix in SOURCES):
        digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    home = cache_home() / "interop"
    target = home / f"{folder.name}-{digest.hexdigest()[:16]}"
    home.mkdir(parents=True, exist_ok=True)
    with _alone(home / f"{folder.name}.lock"):
        if not target.exists():
            said(f"{how} builds {folder.name}; the first time it fetches what that needs")
            making = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=home))
            try:
                build(making)
                making.rename(target)
            finally:
                shutil.rmtree(making, ignore_errors=True)
    return target


@contextmanager
def _alone(lock: Path) -> Any:
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _run(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX)
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"


def python_version(package: str) -> str:
    """The version of an installed package of Python; "-" where there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "-"


def pinned(folder: Path, package: str) -> str:
    """The version of a package that the manifest of a folder (go.mod, pom.xml, package.json, Cargo.toml) names."""
    if (manifest := folder / "package.json").exists():
        return str(json.loads(manifest.read_text("utf-8"))["dependencies"][package])
    if (manifest := folder / "Cargo.toml").exists():
        return str(tomllib.loads(manifest.read_text("utf-8"))["dependencies"][package]["version"]).lstrip("=")
    if (manifest := folder / "go.mod").exists():
        named = re.search(rf"{re.escape(package)} v(\S+)", manifest.read_text("utf-8"))
    else:
        text = (folder / "pom.xml").read_text("utf-8")
        dependencies = text[text.index("<dependencies>") :]  # before them is the program's own name
        named = re.search(rf"<artifactId>{re.escape(package)}</artifactId>\s*<version>([^<]+)", dependencies)
    assert named is not None, f"{folder} names no version of {package}"
    return named[1]
