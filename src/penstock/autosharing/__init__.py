"""Training scripts without a changed line on one feed: what their DataLoaders return when they are iterated."""
