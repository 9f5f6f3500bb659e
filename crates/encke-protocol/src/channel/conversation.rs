//! A channel: its caller, its subscriptions, and what it does for each message.

use std::sync::Arc;

use encke_access::{AccessDenied, Caller, CallersIn, CallersOut, Operation, UnknownAuthority};
use encke_presence::NewMember;
use encke_stream::{Lookup, home};

use super::append::{ChannelAppend, ChannelBroadcast};
use super::context::ChannelContext;
use super::follow::{ChannelFollow, ChannelFollowSeveral};
use super::merged::reason;
use super::message::{AppendMessage, ClientMessage, MessageLimits, MessageRequest};
use super::reply::{MessageTag, Subject};
use super::subscriptions::Subscriptions;
use crate::action::{
    Action, Broadcast, Channel, ChannelAction, ChannelMessage, FeedEnd, RegrantedChannel,
};
use crate::append::{awaits_order, stop};
use crate::encoder::StreamEnd;
use crate::ephemeral::{check_body, ephemeral_message};
use crate::events::{Named, Parameters};
use crate::gate::{Admitted, Rights, denial, resolve_token};
use crate::last_messages::{LAST_BYTES_MAX, ReadStart, WantedMessages, find_last};
use crate::misspelled::shown;
use crate::moved_channel::{MovedChannel, MovedConversation, MovedRights};
use crate::problem::error;
use crate::response::{AuditNote, REFUSED, Response};
use crate::streams::load;

/// A channel.
#[derive(Debug)]
pub(super) struct Conversation {
    context: Arc<ChannelContext>,
    rights: Rights,
    /// Where it was opened, with access control.
    origin: Option<Box<ChannelOrigin>>,
    subscriptions: Subscriptions,
}

// What an idle channel costs beside the names of its subscriptions.
const _: () = assert!(size_of::<Conversation>() <= 64);

/// Where a channel was opened.
#[derive(Debug)]
struct ChannelOrigin {
    /// The path, for the audit log.
    path: Box<str>,
    /// The message that stands for the subscription of the URL. A URL that was signed is good for nothing else.
    first: Option<Box<str>>,
}

impl Conversation {
    /// A channel of the caller of a request.
    pub(super) fn new(
        context: Arc<ChannelContext>,
        admitted: &Admitted<'_>,
        first: Option<&str>,
    ) -> Self {
        let origin = context.access.is_some().then(|| {
            Box::new(ChannelOrigin {
                path: admitted.path.into(),
                first: first.filter(|_| admitted.rights.is_signed()).map(Box::from),
            })
        });
        Conversation {
            context,
            rights: admitted.rights.clone(),
            origin,
            subscriptions: Subscriptions::default(),
        }
    }

    /// Takes a channel over from another process.
    pub(super) fn arrive(
        context: Arc<ChannelContext>,
        moved: MovedConversation,
        callers: &CallersIn,
    ) -> Result<Self, UnknownAuthority> {
        // The other process may have had no access control, and this one has it.
        let path = moved.path.or(context.access.is_some().then(Box::default));
        let first = moved.first;
        Ok(Conversation {
            rights: moved.rights.arrive(callers)?,
            origin: path.map(|path| Box::new(ChannelOrigin { path, first })),
            subscriptions: Subscriptions::arrive(moved.subscriptions),
            context,
        })
    }

    fn handle(
        &mut self,
        parsed: ClientMessage,
        message: &ChannelMessage<'_>,
    ) -> Result<ChannelAction, Response> {
        let ClientMessage { tag, request } = parsed;
        self.check_certificate(message)?;
        if !matches!(request, MessageRequest::Authenticate { .. }) {
            self.check_caller(message)?;
        }
        match request {
            MessageRequest::Authenticate { token } => self.authenticate(&tag, &token, message),
            MessageRequest::Follow {
                name,
                start,
                has_times,
            } => self.follow(&tag, name, (start, has_times), message),
            MessageRequest::FollowSeveral {
                subject,
                parameters,
            } => self.follow_several(&tag, subject, &parameters, message),
            MessageRequest::Unsubscribe(subject) => {
                let key = self.subscriptions.remove(&subject).ok_or_else(|| {
                    let label = shown(&subject.label());
                    let why = format!("the channel has no subscription to {label}");
                    error(404, "not_subscribed", why)
                })?;
                let response = tag.reply("unsubscribed", |_| ());
                Ok(plain(Action::Unsubscribe(key, response)))
            }
            MessageRequest::Append { name, append } => self.append(tag, &name, append, message),
            MessageRequest::Ephemeral {
                name,
                content_type,
                body,
                echoes,
            } => self.broadcast(tag, &name, (content_type.as_deref(), body), echoes, message),
            MessageRequest::Stop { name } => self.stop(tag, &name, message),
        }
    }

    /// Subscribes to one stream.
    fn follow(
        &mut self,
        tag: &MessageTag,
        name: Box<str>,
        (start, has_times): (ReadStart, bool),
        message: &ChannelMessage<'_>,
    ) -> Result<ChannelAction, Response> {
        self.check_signed(message.text)?;
        let subject = Subject::Stream(name.clone());
        let context = Arc::clone(&self.context);
        let streams = context.streams();
        streams.check_name(&name)?;
        self.check_readable(&subject)?;
        self.subscriptions
            .check_new(&subject, context.planner.streams_max)?;
        if streams.in_fleet && message.barriers == 0 {
            let log = home(&name, streams.views.logs());
            return Ok(plain(Action::AwaitOrder(log, Vec::new())));
        }
        // Held until the action is decided, so that the stream stays in memory.
        let Some(_known) = streams.known(&name) else {
            return Ok(plain(load(&name, Vec::new())));
        };
        let stream = streams.find_for(&name, message.now, &self.rights)?;
        let facts = stream.facts();
        streams.touch(&stream, message.now);
        let follow = ChannelFollow {
            tag: tag.clone(),
            stream: Arc::clone(&stream),
            encoder: context.encoders.choose(has_times),
        };
        let action = match start {
            ReadStart::Behind(start) => follow.begin(streams.begin(&stream, facts, start)?),
            ReadStart::Last(count) => {
                let wanted = WantedMessages {
                    stream,
                    facts,
                    count,
                    bytes_max: LAST_BYTES_MAX,
                };
                find_last(streams, wanted, Box::new(follow), message.now.wall)
            }
        };
        Ok(self.subscribe(subject, action))
    }

    /// Subscribes to several streams, or to a pattern.
    fn follow_several(
        &mut self,
        tag: &MessageTag,
        subject: Subject,
        parameters: &Parameters,
        message: &ChannelMessage<'_>,
    ) -> Result<ChannelAction, Response> {
        self.check_signed(message.text)?;
        let context = Arc::clone(&self.context);
        self.subscriptions
            .check_new(&subject, context.planner.streams_max)?;
        let admitted = self.admitted("GET", self.path());
        let follow = ChannelFollowSeveral {
            tag: tag.clone(),
            label: subject.label().into(),
            encoder: context.merge_encoders.choose(parameters.has_times),
        };
        let action = context.planner.plan(
            parameters,
            &admitted,
            message.now,
            message.barriers,
            Box::new(follow),
        )?;
        Ok(self.subscribe(subject, action))
    }

    /// Adds a subscription if the action begins one, now or behind a read.
    fn subscribe(&mut self, subject: Subject, action: Action) -> ChannelAction {
        let key = match action {
            Action::Subscribe(_) | Action::Read(..) => self.subscriptions.add(subject),
            _ => 0,
        };
        ChannelAction {
            key,
            ..plain(action)
        }
    }

    fn append(
        &mut self,
        tag: MessageTag,
        name: &str,
        mut append: AppendMessage,
        message: &ChannelMessage<'_>,
    ) -> Result<ChannelAction, Response> {
        let streams = self.context.streams();
        self.check_write(Operation::Append, name)?;
        let content_type = append.content_type();
        if streams.in_fleet
            && message.barriers == 0
            && awaits_order(streams, name, content_type, message.now)
        {
            let log = home(name, streams.views.logs());
            return Ok(plain(Action::AwaitOrder(log, Vec::new())));
        }
        // Held until the action is decided, so that the stream stays in memory.
        let Some(_known) = streams.known(name) else {
            return Ok(plain(load(name, Vec::new())));
        };
        let stream = streams.find_for(name, message.now, &self.rights)?;
        let (command, _) = append.request().command(stream)?;
        Ok(plain(Action::Commit(
            command,
            Box::new(ChannelAppend { tag }),
        )))
    }

    /// Sends data of a type to those who are subscribed to a stream now.
    fn broadcast(
        &mut self,
        tag: MessageTag,
        name: &str,
        (content_type, body): (Option<&str>, Vec<u8>),
        echoes: bool,
        message: &ChannelMessage<'_>,
    ) -> Result<ChannelAction, Response> {
        let streams = self.context.streams();
        self.check_write(Operation::Append, name)?;
        check_body(streams, &body)?;
        if streams.in_fleet
            && message.barriers == 0
            && awaits_order(streams, name, content_type, message.now)
        {
            let log = home(name, streams.views.logs());
            return Ok(plain(Action::AwaitOrder(log, Vec::new())));
        }
        // Held until the action is decided, so that the stream stays in memory.
        let Some(_known) = streams.known(name) else {
            return Ok(plain(load(name, Vec::new())));
        };
        let stream = streams.find_for(name, message.now, &self.rights)?;
        let ephemeral = ephemeral_message(&stream, content_type, body, message.now.wall)?;
        Ok(plain(Action::Broadcast(Box::new(Broadcast {
            message: ephemeral,
            echoes,
            then: Box::new(ChannelBroadcast { tag }),
        }))))
    }

    /// Whether the client may change a stream of that name in this way, before the stream is looked for.
    fn check_write(&self, operation: Operation, name: &str) -> Result<(), Response> {
        let streams = self.context.streams();
        streams.check_name(name)?;
        let path = self.context.path(name);
        let needed = streams.rights.of_stream(operation, name, &*path);
        self.admitted("POST", &path).meet(&needed)?;
        streams.rights.check_writer(operation, name)
    }

    /// Asks the producer of a stream to stop.
    fn stop(
        &mut self,
        tag: MessageTag,
        name: &str,
        message: &ChannelMessage<'_>,
    ) -> Result<ChannelAction, Response> {
        let streams = self.context.streams();
        self.check_write(Operation::Stop, name)?;
        if streams.in_fleet
            && message.barriers == 0
            && awaits_order(streams, name, None, message.now)
        {
            let log = home(name, streams.views.logs());
            return Ok(plain(Action::AwaitOrder(log, Vec::new())));
        }
        // Held until the action is decided, so that the stream stays in memory.
        let Some(_known) = streams.known(name) else {
            return Ok(plain(load(name, Vec::new())));
        };
        let stream = streams.find_for(name, message.now, &self.rights)?;
        let command = stop(stream, None);
        Ok(plain(Action::Commit(
            command,
            Box::new(ChannelAppend { tag }),
        )))
    }

    /// Sets the caller, and ends the subscriptions that it may not have.
    fn authenticate(
        &mut self,
        tag: &MessageTag,
        token: &str,
        message: &ChannelMessage<'_>,
    ) -> Result<ChannelAction, Response> {
        // Without access control a token says nothing, as in requests.
        let Some(access) = self.context.access.clone() else {
            let response = tag.reply("authenticated", |_| ());
            return Ok(plain(Action::Respond(response)));
        };
        let rights = match resolve_token(
            &access,
            token,
            (message.certificate, message.address),
            message.now,
        ) {
            Ok(rights) => rights,
            Err(denied) => {
                let response = self.denied(&denied);
                return match denied {
                    AccessDenied::KeysUnknown { .. } => {
                        let response = tag.error(response);
                        Ok(plain(Action::Park(response, Vec::new())))
                    }
                    _ => Err(response),
                };
            }
        };
        if let Some(origin) = &mut self.origin {
            origin.first = None;
        }
        let ended = self.set_rights(rights);
        let caller = self.rights.caller().cloned();
        let until = caller.as_deref().and_then(Caller::ends_at);
        let now = message.now.wall;
        let response = tag.reply("authenticated", |message| {
            if let Some(until) = until {
                message.literal("until", until.as_ms());
                // A duration, because the client's clock may be wrong.
                let expires_in = until.since(now);
                message.literal("expiresInMs", expires_in.as_millis());
            }
        });
        Ok(ChannelAction {
            caller: Some(caller),
            ended,
            ..plain(Action::Respond(response))
        })
    }

    /// Sets what the caller may do, and removes the subscriptions that it may not have.
    fn set_rights(&mut self, rights: Rights) -> Vec<(u32, Response)> {
        let before = std::mem::replace(&mut self.rights, rights);
        let mut subscriptions = std::mem::take(&mut self.subscriptions);
        let refused = subscriptions.remove_refused(|subject| {
            self.check_readable(subject)?;
            self.check_owners(subject, &before)
        });
        self.subscriptions = subscriptions;
        let ended = refused.into_iter().map(|(one, refused)| {
            let tag = MessageTag {
                id: None,
                subject: Some(one.subject),
            };
            (one.key, tag.error(refused))
        });
        ended.collect()
    }

    /// Refuses what belongs or may belong to somebody else, if the caller before had more rights to it.
    fn check_owners(&self, subject: &Subject, before: &Rights) -> Result<(), Response> {
        let planner = &self.context.planner;
        for name in subject.names() {
            let named = Named::new(name.to_string(), ReadStart::NOW);
            let paths = named.paths(&planner.root);
            let (viewer, viewer_before) = (self.rights.viewer(&paths), before.viewer(&paths));
            let keeps = before.only_stream().is_none() && viewer.includes(&viewer_before);
            // One of several goes on with a stream that was deleted meanwhile, and only its feed knows which.
            if keeps || matches!(subject, Subject::Stream(_)) && self.is_open(name) {
                continue;
            }
            return Err(error(
                403,
                "other_caller",
                "the token may use the streams of fewer callers than the one before: subscribe again to what belongs to callers, or may",
            ));
        }
        Ok(())
    }

    /// Whether a stream is known to belong to the caller or to nobody, or whoever it belongs to, the caller may use it.
    fn is_open(&self, name: &str) -> bool {
        let streams = self.context.streams();
        match streams.known(name) {
            Some(Lookup::Stream(stream)) => streams.admits(&stream, &self.rights),
            // Only the stream knows its owner.
            Some(Lookup::Free(_)) | None => false,
        }
    }

    /// Refuses what the caller may not read.
    fn check_readable(&self, subject: &Subject) -> Result<(), Response> {
        let planner = &self.context.planner;
        for name in subject.names() {
            let path = self.context.path(name);
            let admitted = self.admitted("GET", &path);
            let named = Named::new(name.to_string(), ReadStart::NOW);
            let needed = named.requirements(&planner.root, &planner.streams.rights);
            needed.iter().try_for_each(|needed| admitted.meet(needed))?;
        }
        Ok(())
    }

    /// Refuses a further subscription of a channel whose URL was signed: the URL is good for its own only.
    fn check_signed(&self, text: &str) -> Result<(), Response> {
        match self.rights.is_signed() && self.first() != Some(text) {
            false => Ok(()),
            true => Err(error(
                403,
                "signed_url",
                "the URL of the channel was signed for the subscription that it names; for others, authenticate with a token",
            )),
        }
    }

    /// Refuses everything once the certificate of the connection has ended.
    fn check_certificate(&self, message: &ChannelMessage<'_>) -> Result<(), Response> {
        let certificate = message.certificate;
        match certificate.is_some_and(|one| one.has_ended(message.now.wall)) {
            false => Ok(()),
            true => Err(self.denied(&AccessDenied::Expired("client certificate"))),
        }
    }

    /// Refuses a message whose caller's credentials have ended, as the request with them would be refused.
    fn check_caller(&self, message: &ChannelMessage<'_>) -> Result<(), Response> {
        let (Some(access), Some(caller)) = (&self.context.access, self.rights.caller()) else {
            return Ok(());
        };
        let has_ended = |end| message.now.wall >= end;
        if caller.ends_at().is_some_and(has_ended) {
            return Err(self.denied(&AccessDenied::Expired("token")));
        }
        let renewed = access.renewed(caller);
        renewed.map(drop).map_err(|denied| self.denied(&denied))
    }

    fn denied(&self, denied: &AccessDenied) -> Response {
        denial(denied).audited(Some(Box::new(AuditNote {
            event: REFUSED,
            reason: denied.reason(),
            caller: "".into(),
            method: "GET".into(),
            path: self.path().into(),
        })))
    }

    /// The path at which it was opened; none without access control, where nothing is refused by rights.
    fn path(&self) -> &str {
        self.origin.as_ref().map_or("", |origin| &origin.path)
    }

    fn first(&self) -> Option<&str> {
        self.origin.as_ref()?.first.as_deref()
    }

    fn limits(&self) -> MessageLimits {
        MessageLimits {
            name_bytes_max: self.context.streams().name_bytes_max,
            streams_max: self.context.planner.streams_max,
        }
    }

    /// What a message may do at a path, as the request with that method.
    fn admitted<'p>(&self, method: &'p str, path: &'p str) -> Admitted<'p> {
        Admitted {
            path,
            below: "",
            method,
            rights: self.rights.clone(),
        }
    }
}

impl Channel for Conversation {
    fn member(&self) -> Option<NewMember> {
        let member = self.rights.member(None).ok().flatten();
        member.map(|member| *member)
    }

    fn message(&mut self, message: ChannelMessage<'_>) -> ChannelAction {
        let parsed = match ClientMessage::parse(message.text, self.limits()) {
            Ok(parsed) => parsed,
            Err(bad) => return plain(Action::Respond(bad.tag.error(bad.refused))),
        };
        let tag = parsed.tag.clone();
        self.handle(parsed, &message)
            .unwrap_or_else(|refused| plain(Action::Respond(tag.error(refused))))
    }

    fn ended(&mut self, key: u32, end: FeedEnd) -> Vec<u8> {
        let subject = self.subscriptions.remove_key(key);
        let tag = MessageTag { id: None, subject };
        let message = match end {
            FeedEnd::NeverBegan | FeedEnd::Told | FeedEnd::Dismissed => return Vec::new(),
            FeedEnd::Deleted => tag.reply("ended", |message| {
                message.plain("reason", reason(StreamEnd::Deleted));
            }),
            FeedEnd::Failed(why) => tag.reply("disconnected", |message| {
                message.text("reason", why).literal("resumable", true);
            }),
        };
        message.body.as_ref().to_vec()
    }

    fn refuse_feed(&mut self, key: u32, refused: Response) -> Vec<u8> {
        let subject = self.subscriptions.remove_key(key);
        let message = MessageTag { id: None, subject }.error(refused);
        message.body.as_ref().to_vec()
    }

    fn refuse(&self, text: &str, refused: Response) -> Response {
        let tag = match ClientMessage::parse(text, self.limits()) {
            Ok(parsed) => parsed.tag,
            Err(bad) => bad.tag,
        };
        tag.error(refused)
    }

    fn regrant(&mut self) -> Option<RegrantedChannel> {
        let access = self.context.access.as_ref()?;
        let Rights::Caller {
            caller, conceals, ..
        } = &mut self.rights
        else {
            return None;
        };
        *conceals = access.conceals();
        let renewed = access.renewed(caller).ok()?;
        if Arc::ptr_eq(&renewed, caller) {
            return None;
        }
        let mut rights = self.rights.clone();
        if let Rights::Caller { caller, .. } = &mut rights {
            *caller = Arc::clone(&renewed);
        }
        Some(RegrantedChannel {
            caller: renewed,
            ended: self.set_rights(rights),
        })
    }

    fn farewell(&self, why: &str) -> Vec<u8> {
        let ended = error(401, "credentials_ended", why);
        let message = MessageTag::default().error(ended);
        message.body.as_ref().to_vec()
    }

    fn has_caller(&self) -> bool {
        !matches!(self.rights, Rights::Unidentified)
    }

    fn moved(&self, callers: &mut CallersOut) -> MovedChannel {
        let origin = self.origin.as_deref();
        MovedChannel::Messages(MovedConversation {
            rights: MovedRights::of(&self.rights, callers),
            path: origin.map(|origin| origin.path.clone()),
            first: origin.and_then(|origin| origin.first.clone()),
            subscriptions: self.subscriptions.moved(),
        })
    }
}

fn plain(action: Action) -> ChannelAction {
    ChannelAction {
        action,
        key: 0,
        caller: None,
        ended: Vec::new(),
    }
}
