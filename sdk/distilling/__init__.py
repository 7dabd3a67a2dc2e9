"""Verified rollouts of one policy as a supervised data set for another."""
