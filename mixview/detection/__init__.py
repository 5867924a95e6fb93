"""Detection and instance segmentation: an encoder fine-tuned as a Faster or Mask R-CNN, judged by average precision."""
