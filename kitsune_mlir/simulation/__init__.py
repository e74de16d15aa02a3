"""A discrete-event run of a tile program on a described machine: times, occupancy, traffic, and whether it locks up."""

from kitsune_mlir.simulation.result import Simulation, StageFigures
from kitsune_mlir.simulation.run import DeadlockError
from kitsune_mlir.simulation.simulate import simulate

__all__ = ["DeadlockError", "Simulation", "StageFigures", "simulate"]
