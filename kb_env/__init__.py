"""CUDA optimization as a Gymnasium environment."""
