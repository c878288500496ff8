//! Names of what the core owns: small integers, without the owner.

/// Nanoseconds of one monotonic clock.
pub type Nanos = u64;

/// Names a request for ever; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Names a planned step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StepId(pub u64);

/// Dense index of a live sequence; reused after its end.
pub type Slot = u32;

/// A row of the batch.
pub type Row = u32;

/// Dense index of a tenant; reused when it is forgotten.
pub(crate) type Tenant = u32;

/// Names a block of the pool.
pub(crate) type BlockId = u32;

/// Padding of block tables; never allocated.
pub(crate) const NULL_BLOCK: BlockId = 0;

/// Names a snapshot of a recurrent state.
pub(crate) type Snapshot = u32;

/// Names a block of the host's pool.
pub(crate) type HostBlock = u32;
