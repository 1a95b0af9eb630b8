"""A wheel holds conf/ and models/ inside the package; in a checkout they stand beside src/."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithFolders(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for folder in ("conf", "models"):
                self.copy_tree(folder, str(Path(self.build_lib) / "growpage" / folder))


setup(cmdclass={"build_py": BuildWithFolders})
