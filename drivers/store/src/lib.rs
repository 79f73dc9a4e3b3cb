//! Where leased bytes live: memory arenas and block devices.
