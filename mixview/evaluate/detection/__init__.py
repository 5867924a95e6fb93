"""Object detection and instance segmentation."""
