"""The one engine of samples: workers read and decode parts of blocks, whatever they lie in and become."""
