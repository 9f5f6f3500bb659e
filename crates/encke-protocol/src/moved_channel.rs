//! Channels in a form in which another process takes them over.

use encke_access::{CallersIn, CallersOut, MovedCaller, Operation, SignedFields, SignedUrl};
use encke_access::{OperationSet, UnknownAuthority};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

use crate::gate::{Rights, SignedRequest};
use crate::requirement::{Paths, Requirement};

/// A channel, by its protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MovedChannel {
    /// Messages of JSON (docs/websocket.md).
    Messages(MovedConversation),
}

/// A channel of messages: its caller and its subscriptions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovedConversation {
    pub(crate) rights: MovedRights,
    /// The path at which it was opened, with access control.
    pub(crate) path: Option<Box<str>>,
    /// The message that stands for the subscription of its URL, if that was signed.
    pub(crate) first: Option<Box<str>>,
    pub(crate) subscriptions: Vec<MovedSubscription>,
}

/// A subscription of a channel, with the key of its feed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MovedSubscription {
    pub(crate) key: u32,
    pub(crate) names: Box<[Box<str>]>,
    /// It is to one stream, and says so.
    pub(crate) is_single: bool,
}

/// What the caller of a channel may do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MovedRights {
    Everything,
    EverythingButAdmin,
    Operator,
    Nobody,
    Unidentified,
    Caller {
        caller: MovedCaller,
        conceals: bool,
        signed: Option<MovedSignedRequest>,
    },
}

/// The request that a signed URL is good for. The fields that it signs were those of the request that has opened the channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MovedSignedRequest {
    leaves_parameters: bool,
    stream: Option<u64>,
    needs: Vec<MovedRequirement>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct MovedRequirement {
    operations: OperationSet,
    path: Box<str>,
    is_prefix: bool,
}

impl MovedRights {
    pub(crate) fn of(rights: &Rights, callers: &mut CallersOut) -> Self {
        match rights {
            Rights::Everything => MovedRights::Everything,
            Rights::EverythingButAdmin => MovedRights::EverythingButAdmin,
            Rights::Operator => MovedRights::Operator,
            Rights::Nobody => MovedRights::Nobody,
            Rights::Unidentified => MovedRights::Unidentified,
            Rights::Caller {
                caller,
                conceals,
                signed,
            } => MovedRights::Caller {
                caller: callers.caller(caller),
                conceals: *conceals,
                signed: signed.as_deref().map(MovedSignedRequest::of),
            },
        }
    }

    pub(crate) fn arrive(self, callers: &CallersIn) -> Result<Rights, UnknownAuthority> {
        Ok(match self {
            MovedRights::Everything => Rights::Everything,
            MovedRights::EverythingButAdmin => Rights::EverythingButAdmin,
            MovedRights::Operator => Rights::Operator,
            MovedRights::Nobody => Rights::Nobody,
            MovedRights::Unidentified => Rights::Unidentified,
            MovedRights::Caller {
                caller,
                conceals,
                signed,
            } => Rights::Caller {
                caller: callers.caller(caller)?,
                conceals,
                signed: signed.map(|signed| Arc::new(signed.arrive())),
            },
        })
    }
}

impl MovedSignedRequest {
    fn of(signed: &SignedRequest) -> Self {
        let needs = signed.needs.iter().map(|needed| {
            let (path, is_prefix) = match &needed.paths {
                Paths::One(path) => (path, false),
                Paths::Below(prefix) => (prefix, true),
            };
            MovedRequirement {
                operations: needed.alternatives().collect(),
                path: path.as_ref().into(),
                is_prefix,
            }
        });
        MovedSignedRequest {
            leaves_parameters: signed.url.leaves_parameters,
            stream: signed.url.stream,
            needs: needs.collect(),
        }
    }

    fn arrive(self) -> SignedRequest {
        let needs = self.needs.into_iter().flat_map(|needed| {
            let paths = match needed.is_prefix {
                false => Paths::One(String::from(needed.path).into()),
                true => Paths::Below(String::from(needed.path).into()),
            };
            let operations: Vec<Operation> = needed.operations.iter().collect();
            operations.into_iter().map(move |operation| Requirement {
                operation,
                or: None,
                paths: paths.clone(),
            })
        });
        SignedRequest {
            url: SignedUrl {
                fields: SignedFields::default(),
                leaves_parameters: self.leaves_parameters,
                stream: self.stream,
            },
            needs: needs.collect(),
        }
    }
}
