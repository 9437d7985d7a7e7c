"""`python -m stages.compile TARGET`: run the compile stage for one target in the current folder."""

from forge_pipeline.pipeline.dvc_scripts import run

if __name__ == "__main__":
    run("compile")
