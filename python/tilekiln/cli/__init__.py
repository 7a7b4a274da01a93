"""Commands of `tilekiln` besides `bench` and `tune`."""
