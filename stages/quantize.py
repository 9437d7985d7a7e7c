"""`python -m stages.quantize`: run the quantize stage in the current folder, once per distinct target need."""

from forge_pipeline.pipeline.dvc_scripts import run

if __name__ == "__main__":
    run("quantize")
