"""The real releases, unpacked side by side, outside the checkout.

``python tests/contract/wheels.py [VERSION...]`` fetches and unpacks them ahead of a test run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

#: vllm-tpu releases of which only a source distribution exists.
FIRST_SDIST = (0, 22)
#: vllm-tpu -> tpu-inference where they differ.
PAIRS = {"0.22.0": "0.22.1"}

DEFAULT = ("0.12.0", "0.13.3", "0.18.0", "0.21.0", "0.32.0")
ALL = ("0.12.0", "0.13.2.post6", "0.13.3", *(f"0.{minor}.0" for minor in range(18, 33)))

# pip has no command that only fetches a source distribution: `pip download` builds its metadata,
# which for vLLM needs torch and a Rust toolchain.  Its own index client fetches it.
_FETCH = """
import inspect, sys
from pip._internal.commands.download import DownloadCommand
from pip._internal.network.download import Downloader
name, version, directory = sys.argv[1:]
command = DownloadCommand("download", "")
options, _ = command.parse_args(["--no-deps", "-d", directory, name])
with command.main_context():
    session = command.get_default_session(options)
    finder = command._build_package_finder(options, session)
    found = [c for c in finder.find_all_candidates(name)
             if str(c.version) == version and c.link.filename.endswith(".tar.gz")]
    retries = [3] if "resume_retries" in inspect.signature(Downloader).parameters else []
    Downloader(session, "off", *retries)(found[-1].link, directory)
"""


def cache() -> Path:
    """Where wheels, and what was unpacked from them, are kept."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home, "vllm-tpu-async-patch", "wheels")


def unpacked(version: str) -> list[str]:
    """Directories to put on PYTHONPATH for this vllm-tpu release: vllm's and tpu_inference's."""
    return [str(_unpacked("vllm-tpu", version)),
            str(_unpacked("tpu-inference", PAIRS.get(version, version)))]


def _unpacked(name: str, version: str) -> Path:
    stem = f"{name.replace('-', '_')}-{version}"
    target = cache() / stem
    if target.is_dir():
        return target
    cache().mkdir(parents=True, exist_ok=True)
    archive = next(iter(cache().glob(f"{stem}*.*")), None) or _fetch(name, version, stem)
    # Another run may do the same at the same time: whoever is first wins.
    partial = target.with_name(f"{stem}.{os.getpid()}")
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(partial)
    else:
        with tarfile.open(archive) as source:
            wanted = [m for m in source.getmembers()
                      if m.name.startswith(f"{stem}/vllm/") and m.name.endswith(".py")]
            for member in wanted:
                member.name = member.name.partition("/")[2]
                source.extract(member, partial)
    try:
        partial.rename(target)
    except OSError:
        if not target.is_dir():
            raise
    return target


def _fetch(name: str, version: str, stem: str) -> Path:
    release = tuple(int(part) for part in version.split(".")[:2])
    if name == "vllm-tpu" and release >= FIRST_SDIST:
        command = [sys.executable, "-c", _FETCH, name, version, str(cache())]
    else:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(cache()),
                   f"{name}=={version}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=600)
    return next(iter(cache().glob(f"{stem}*.*")))


if __name__ == "__main__":
    for wanted in sys.argv[1:] or ALL:
        print(*unpacked(wanted))
