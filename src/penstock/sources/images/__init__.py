"""Images, decoded and cropped by workers."""
