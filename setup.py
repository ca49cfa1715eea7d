"""Packaging, for those who install bert_jax into an environment of their own: `pip install .` or `pip install -e ".[test]"`.

requirements.txt lists all packages: a line with a marker `extra == "NAME"` belongs to that extra, every other line to the base.
Versions are pinned, not ranges, because a run has to be reproducible; `tpu_scripts/` makes an environment of its own. The extras
`sky`, `peer4` and `peer5` are left out, because they need other package versions and are installed without bert_jax.
"""

import pathlib
import re

from setuptools import find_packages, setup

here = pathlib.Path(__file__).resolve().parent
version = re.search(r'__version__ = "(.+)"', (here / "bert_jax" / "__init__.py").read_text()).group(1)

base, extras = [], {}
for line in (here / "requirements.txt").read_text().splitlines():
    requirement, _, marker = (part.strip() for part in line.partition("#")[0].partition(";"))
    if marker in ('extra == "sky"', 'extra == "peer4"', 'extra == "peer5"'):
        continue
    if marker:
        extras.setdefault(marker.split('"')[1], []).append(requirement)
    elif requirement:
        base.append(requirement)

setup(
    name="bert_jax",
    version=version,
    description="BERT in JAX: pretraining, fine-tuning and analysis on a CPU, a GPU or a TPU pod",
    license="Apache-2.0",
    license_files=["bert_jax/LICENSE"],
    packages=find_packages(include=["bert_jax", "bert_jax.*"]),
    package_data={"bert_jax": ["LICENSE"], "bert_jax.tasks": ["published.json"], "bert_jax.analysis.attention": ["page.html"]},
    python_requires=">=3.11,<3.15",
    install_requires=base,
    extras_require=extras,
)
