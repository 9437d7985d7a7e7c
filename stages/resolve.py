"""`python -m stages.resolve`: compose conf/ and write every stage's slice to resolved/."""

from forge_pipeline.pipeline.dvc_scripts import resolve

if __name__ == "__main__":
    resolve()
