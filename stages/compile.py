"""`python -m stages.compile TARGET`: run the compile stage for one target in the current folder."""

from forge_pipeline.pipeline.dvc_scripts import per_target

if __name__ == "__main__":
    per_target("compile")
