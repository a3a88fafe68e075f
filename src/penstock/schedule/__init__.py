"""Which runs of one server run when, on which GPU, beside whom, and on which feed.

Published schedulers place jobs by memory, utilisation or stages. This one also knows that runs on one data set
need its preparation only once. Nothing here starts anything: values in, a plan out.
"""
