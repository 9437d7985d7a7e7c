"""`python -m stages.load`: run the load stage in the current folder."""

from forge_pipeline.pipeline.dvc_scripts import run

if __name__ == "__main__":
    run("load")
