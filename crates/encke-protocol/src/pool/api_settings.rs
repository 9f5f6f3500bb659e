//! The settings of the protocol, beside those of each pool.

/// The settings of the protocol.
#[derive(Clone, Debug)]
pub struct PoolApiSettings {
    /// The path above the pools; starts and ends with `/`.
    pub root: String,
    /// Bytes of a pool's or a worker's name, decoded.
    pub name_bytes_max: usize,
    /// The longest time that a request may wait for a job or for a result, in seconds.
    pub wait_s_max: u64,
}

impl Default for PoolApiSettings {
    fn default() -> Self {
        PoolApiSettings {
            root: "/v1/pool/".into(),
            name_bytes_max: 200,
            wait_s_max: 300,
        }
    }
}
