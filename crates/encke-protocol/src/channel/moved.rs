//! The rights of a channel's caller, for another process and from one.

use std::sync::Arc;

use encke_access::{CallersIn, CallersOut, Operation, SignedFields, SignedUrl, UnknownAuthority};

use crate::gate::{Rights, SignedRequest};
use crate::moved_channel::{MovedRequirement, MovedRights, MovedSignedRequest};
use crate::requirement::{Paths, Requirement};

impl MovedRights {
    pub(super) fn of(rights: &Rights, callers: &mut CallersOut) -> Self {
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

    pub(super) fn arrive(self, callers: &CallersIn) -> Result<Rights, UnknownAuthority> {
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
