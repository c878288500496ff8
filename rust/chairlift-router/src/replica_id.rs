//! The name of a replica.

/// Dense index of a replica.
pub type ReplicaId = u16;
