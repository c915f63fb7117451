"""The build backend: that of maturin, with the command `iof` as a script of the wheel."""

import os
import shutil
import subprocess

import maturin
from maturin import *  # noqa: F403

SCRIPTS = os.path.join(maturin.get_config()["data"], "scripts")
# maturin demands the folder for each of its commands.
os.makedirs(SCRIPTS, exist_ok=True)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    arguments = maturin.get_maturin_pep517_args(config_settings)
    profile = arguments[arguments.index("--profile") + 1] if "--profile" in arguments else "release"
    # Source distributions have the crate below engine/python.
    manifest = maturin.get_config().get("manifest-path", "Cargo.toml")
    command = ["-p", "iof-python", "-p", "iof-cli", "--features", "command", "--bin", "iof"]
    subprocess.run(["cargo", "build", "--locked", "--manifest-path", manifest, "--profile", profile, *command], check=True)
    target = os.environ.get("CARGO_TARGET_DIR") or os.path.join(os.path.dirname(manifest), "target")
    shutil.copy2(os.path.join(target, "debug" if profile == "dev" else profile, "iof"), SCRIPTS)
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)
