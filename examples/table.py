"""A raw table, trained, measured, reported and predicted by the command: python examples/table.py

The table comes from scikit-learn: measurements of cells, one of them given as a word, and a diagnosis in words.
"""

import shutil
import subprocess
import sys

import pandas as pd
from sklearn.datasets import load_breast_cancer


def raw_table() -> pd.DataFrame:
    """Measurements, one of them as a word and one with gaps, and the diagnosis as a word."""
    data = load_breast_cancer(as_frame=True)
    table = data.data.copy()
    table["mean radius"] = pd.cut(table["mean radius"], [0, 12, 16, 99], labels=["small", "medium", "large"])
    table.loc[::40, "mean texture"] = None
    table["diagnosis"] = [data.target_names[label] for label in data.target]
    return table


def rhobust(*words: str) -> None:
    """One command, as in a shell."""
    print(f"\n$ rhobust {' '.join(words)}", flush=True)
    subprocess.run([sys.executable, "-m", "rhobust", *words], check=True)


def main() -> None:
    """Train on the first 450 rows, measure on the next 100, and predict the last 19, whose diagnosis is not given."""
    table = raw_table()
    table[:450].to_csv("breast_cancer.csv", index=False)
    table[450:550].to_csv("breast_cancer_test.csv", index=False)
    table[550:].drop(columns="diagnosis").to_csv("new_patients.csv", index=False)
    for name in ("plain", "robust", "area"):
        shutil.rmtree(name, ignore_errors=True)
    files = ("--data", "breast_cancer.csv", "--test", "breast_cancer_test.csv")
    data = (*files, "--target", "diagnosis")
    how = ("--clip-to-training", "--model", "linear", "--epochs", "60", "--learning-rate", "0.005", "--device", "cpu")
    rhobust("train", *data, *how, "--method", "erm", "--out", "plain")
    rhobust("train", *data, *how, "--method", "spgda", "--radius", "0.3", "--out", "robust")
    for name in ("plain", "robust"):
        rhobust("evaluate", name, "--epsilons", "0,0.1,0.2")
    rhobust("report", "plain", "robust", "--out", "report.html")
    rhobust("predict", "robust", "new_patients.csv", "--out", "predictions.csv")
    print(pd.read_csv("predictions.csv").head())
    area = ("--target", "mean area", "--task", "regression", "--drop", "diagnosis")
    rhobust("train", *files, *area, *how, "--method", "spgda-loss", "--radius", "0.05", "--out", "area")
    rhobust("evaluate", "area", "--epsilons", "0,0.1")
    rhobust("predict", "area", "new_patients.csv", "--out", "areas.csv")
    print(pd.concat([pd.read_csv("areas.csv"), table["mean area"][550:].reset_index(drop=True)], axis=1).head())


if __name__ == "__main__":
    main()
