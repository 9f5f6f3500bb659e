//! Where clients connect: `/app/{key}`.

use std::sync::Arc;

use encke_access::CallersIn;

use super::app::App;
use super::context::PusherContext;
use super::server_message::PusherCode;
use super::socket::{PusherSocket, RefusedSocket};
use crate::action::{Action, Channel, ChannelOpening};
use crate::gate::{Admitted, RequestOrigin};
use crate::known_field::KnownFields;
use crate::mount::Mount;
use crate::moved_channel::MovedChannel;
use crate::problem::{check_method, error};
use crate::protocol::{ChannelMovedIn, Protocol};
use crate::query;
use crate::request::Request;
use crate::requirement::{RequestHead, Requirement};
use crate::response::Response;

/// The side of clients.
#[derive(Debug)]
pub(crate) struct PusherSockets {
    mounts: [Mount; 1],
    context: Arc<PusherContext>,
}

impl PusherSockets {
    pub(super) fn new(context: Arc<PusherContext>) -> Self {
        PusherSockets {
            mounts: [Mount::below("/app/")],
            context,
        }
    }

    fn open(&self, request: &Request<'_>, key: &str) -> Box<dyn Channel> {
        let opened = self.admit(request, key).and_then(|app| {
            let full = RefusedSocket(
                PusherCode::CONNECTIONS_MAX,
                "the app has as many connections as it may have",
            );
            app.take_place().ok_or(full)
        });
        match opened {
            Ok(place) => Box::new(PusherSocket::new(Arc::clone(&self.context), place)),
            Err(refused) => Box::new(refused),
        }
    }

    fn admit(&self, request: &Request<'_>, key: &str) -> Result<&Arc<App>, RefusedSocket> {
        if key.contains('/') {
            let why = "clients connect at /app/KEY";
            return Err(RefusedSocket(PusherCode::PATH_UNKNOWN, why));
        }
        check_version(request.query)?;
        let app = self.context.app_of_key(key).ok_or(RefusedSocket(
            PusherCode::APP_UNKNOWN,
            "no app has this key",
        ))?;
        if !app.settings.enabled {
            let why = "the app is disabled";
            return Err(RefusedSocket(PusherCode::APP_DISABLED, why));
        }
        let named = request.headers.all("Origin");
        match app.settings.origins.of_request(named, request.host()) {
            RequestOrigin::Foreign => Err(RefusedSocket(
                PusherCode::UNAUTHORISED,
                "pages of this origin may not use the app; its origins are listed in the configuration",
            )),
            RequestOrigin::Unnamed | RequestOrigin::Own | RequestOrigin::Allowed(_) => Ok(app),
        }
    }
}

impl Protocol for PusherSockets {
    fn mounts(&self) -> &[Mount] {
        &self.mounts
    }

    fn methods(&self) -> &'static [&'static str] {
        &["GET"]
    }

    fn fields(&self) -> &'static KnownFields {
        &KnownFields::NONE
    }

    fn overview(&self) -> &'static str {
        "Pusher       WebSocket         /app/{key}\n"
    }

    fn requirements<'a>(&self, _: &RequestHead<'a>) -> Result<Vec<Requirement<'a>>, Response> {
        Ok(Vec::new())
    }

    /// The key names the app, and subscriptions are signed.
    fn has_own_credentials(&self, _method: &str, _below: &str) -> bool {
        true
    }

    fn opens_channel(&self, _below: &str, _query: Option<&str>) -> bool {
        true
    }

    /// By the origins of the app.
    fn judges_origins(&self, _below: &str) -> bool {
        true
    }

    fn move_in(&self, channel: &MovedChannel, _callers: &CallersIn) -> Option<ChannelMovedIn> {
        let MovedChannel::Pusher(moved) = channel else {
            return None;
        };
        let socket = PusherSocket::arrive(&self.context, moved)?;
        Some(Ok(Box::new(socket)))
    }

    fn request(&self, request: Request<'_>, admitted: &Admitted<'_>) -> Action {
        if let Err(refused) = check_method(request.method, &["GET"]) {
            return Action::Respond(refused);
        }
        if !request.upgrade {
            let why = "clients of the Pusher protocol connect with WebSocket here";
            return Action::Respond(error(400, "websocket_needed", why));
        }
        Action::Open(ChannelOpening {
            response: Response::new(101),
            channel: self.open(&request, admitted.below),
            // The channel answers it by who it is, or why it is closed.
            first: vec![Vec::new()],
        })
    }
}

/// Checks the version of the protocol that a client names. All of these have the same messages.
fn check_version(query: Option<&str>) -> Result<(), RefusedSocket> {
    let invalid = RefusedSocket(
        PusherCode::VERSION_INVALID,
        "the parameter protocol is not the number of a version",
    );
    let mut version = None;
    for parameter in query::parameters(query) {
        match parameter {
            Ok((name, value)) if name == "protocol" => version = Some(value.into_owned()),
            Ok(_) => {}
            Err(_) => return Err(invalid),
        }
    }
    let version = version.ok_or(RefusedSocket(
        PusherCode::VERSION_MISSING,
        "the parameter protocol is missing, such as protocol=7",
    ))?;
    match version.parse::<u32>() {
        Ok(5..=7) => Ok(()),
        Ok(_) => Err(RefusedSocket(
            PusherCode::VERSION_UNSUPPORTED,
            "only the versions 5 to 7 of the protocol are supported",
        )),
        Err(_) => Err(invalid),
    }
}
