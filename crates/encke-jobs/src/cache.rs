//! The content of jobs in memory.

use std::collections::HashMap;

use crate::request::{JobId, Payload};

/// The content of jobs, within a bound. Other content is read from the log when its job is dispatched.
#[derive(Debug, Default)]
pub(crate) struct PayloadCache {
    payloads: HashMap<JobId, Payload>,
    bytes: usize,
}

impl PayloadCache {
    pub(crate) fn add(&mut self, id: JobId, payload: Payload, bytes_max: usize) {
        let bytes = weight(&payload);
        if self.bytes + bytes <= bytes_max {
            self.bytes += bytes;
            self.payloads.insert(id, payload);
        }
    }

    /// The bytes of all content.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn find(&self, id: JobId) -> Option<&Payload> {
        self.payloads.get(&id)
    }

    pub(crate) fn remove(&mut self, id: JobId) {
        if let Some(payload) = self.payloads.remove(&id) {
            self.bytes -= weight(&payload);
        }
    }
}

fn weight(payload: &Payload) -> usize {
    payload.body.len()
        + payload.content_type.len()
        + payload.key.as_deref().map_or(0, str::len)
        + size_of::<(JobId, Payload)>()
}
