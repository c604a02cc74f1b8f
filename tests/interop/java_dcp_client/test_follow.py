"""Couchbase's Java DCP client follows a node through crashes and a rollback; see README.md."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.interop.story import follow_through_everything

HERE = Path(__file__).parent
HAS_TOOLS = shutil.which("mvn") is not None and shutil.which("javac") is not None
PATHS = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath"


def compiled(target: Path) -> str:
    """Compile the program; returns its class path."""
    jars = target / "jars"
    build = ["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), f"-DbuildDirectory={target}", f"-Dmdep.outputFile={jars}"]
    subprocess.run([*build, "compile", PATHS], capture_output=True, text=True, timeout=540, check=True)
    return os.pathsep.join([str(target / "classes"), jars.read_text("utf-8").strip()])


if HAS_TOOLS:

    @pytest.mark.interop
    def test_the_java_client_holds_what_the_node_holds_through_crash_and_rollback(tmp_path: Path) -> None:
        path = compiled(tmp_path / "target")

        def program(port: int) -> Sequence[str]:
            return ["java", "-cp", path, "headwater.DcpFollow", str(port)]

        follow_through_everything(program, tmp_path)
