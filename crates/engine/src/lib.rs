//! One thread that owns all inference state: schedule, forward, sample, commit.
