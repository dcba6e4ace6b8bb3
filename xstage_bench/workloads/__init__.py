"""Workloads of real models: what they compute and store, as TaskSchedules for a node and a parallel layout."""

from xstage_bench.workloads.expand import workload_phases, workloads
from xstage_bench.workloads.predict import predict_workload
from xstage_bench.workloads.predicted import PhasePrediction, WorkloadPrediction

__all__ = ["PhasePrediction", "WorkloadPrediction", "predict_workload", "workload_phases", "workloads"]
