//! What all channels share.

use std::sync::Arc;

use encke_access::Access;

use crate::encoder::{EncoderForms, EncoderId, MergeEncoderId};
use crate::events::MergePlanner;
use crate::streams::StreamAccess;

/// What all channels share.
#[derive(Debug)]
pub(super) struct ChannelContext {
    pub(super) planner: MergePlanner,
    /// The access control, if there is one.
    pub(super) access: Option<Arc<Access>>,
    /// Of subscriptions to one stream.
    pub(super) encoders: EncoderForms<EncoderId>,
    /// Of subscriptions to several.
    pub(super) merge_encoders: EncoderForms<MergeEncoderId>,
}

impl ChannelContext {
    pub(super) fn streams(&self) -> &StreamAccess {
        &self.planner.streams
    }

    /// The path of a stream, by which rights to it are granted.
    pub(super) fn path(&self, name: &str) -> String {
        format!("{}{name}", self.planner.root)
    }
}
