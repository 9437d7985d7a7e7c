"""`python -m stages.calibrate`: run the calibrate stage in the current folder."""

from forge_pipeline.pipeline.dvc_scripts import run

if __name__ == "__main__":
    run("calibrate")
