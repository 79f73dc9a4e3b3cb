//! The journal of grants: appended, fsynced in groups, compacted, replayed.
