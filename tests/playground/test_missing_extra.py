"""The playground without its extra."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("package", ["uvicorn", "starlette", "python_multipart", "httpx"])
def test_without_a_package_the_playground_says_how_to_install_its_extra(package: str) -> None:
    code = f"""if True:
        import sys
        sys.modules[{package!r}] = None
        from stepwell.errors import MissingExtra
        try:
            import stepwell.playground.play
        except MissingExtra as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "stepwell[playground]" in done.stdout
