"""What each rank sets up: process group and device, precision, optimiser."""
