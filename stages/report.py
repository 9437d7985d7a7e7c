"""`python -m stages.report`: write out/report.html and print what was built and where."""

from forge_pipeline.pipeline.dvc_scripts import report

if __name__ == "__main__":
    report()
