"""From a data set to the batch of a step: order, loading, sharing, augmentation, bad samples."""
