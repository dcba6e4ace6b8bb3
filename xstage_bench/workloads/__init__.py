"""Workloads of real models: what they compute and store, as TaskSchedules for a node and a parallel layout."""

from xstage_bench.workloads.expand import workload_phases, workloads
from xstage_bench.workloads.predict import PhasePrediction, WorkloadPrediction, predict_workload

__all__ = ["PhasePrediction", "WorkloadPrediction", "predict_workload", "workload_phases", "workloads"]
