//! The HTTP server of the admin address, on a thread of its own.

use std::{
    convert::Infallible,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use berth_stream::{self as stream, Connections, Limits, Listener, Pending};
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{
        AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderValue, REFERRER_POLICY,
        WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
    },
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use subtle::ConstantTimeEq as _;
use tokio::{net::TcpStream, sync::oneshot};

use super::{Sources, Status, counts::Event, metrics};
use crate::config;

/// Connections at a time: one is pending until it is over, for it asks once.
const LIMITS: Limits = Limits { pending: 64, identify_within: PATIENCE.saturating_mul(2), admitted: 0, per_peer: 0 };

/// Where this stands, the page has the nonce of its policy.
const NONCE: &str = "{{nonce}}";

/// How long a request, and its answer, may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The server; it stops when this is dropped.
#[derive(Debug)]
pub(crate) struct Admin {
    local: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Admin {
    /// Binds the address and serves what `sources` hold, on a thread of its own until this is dropped.
    pub(crate) fn start(settings: config::Admin, sources: Sources) -> io::Result<Self> {
        let listener = Listener::bind(settings.listen)?;
        let local = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new().name("berth-admin".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    served = serve(listener, Arc::new((settings, sources))) => if let Err(e) = served {
                        tracing::error!("admin {local}: {e}");
                    },
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Self { local, stop: Some(stop), thread: Some(thread) })
    }

    /// Where it is reached, with the port that was taken where the configuration says 0.
    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        drop(self.stop.take());
        // A panic of its thread has been reported by the panic itself.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

async fn serve(listener: Listener, shared: Arc<(config::Admin, Sources)>) -> io::Result<()> {
    let observed = shared.clone();
    let connections = Connections::<()>::new(LIMITS, move |event| match event {
        stream::Event::Displaced => observed.1.own.add(Event::Evicted),
        stream::Event::Expired => observed.1.own.add(Event::Failed),
        stream::Event::Refused => {}
    });
    let spawn = |stream, _, mut pending: Pending<()>| {
        let shared = shared.clone();
        tokio::spawn(async move {
            if let Some(Err(_)) = pending.identify(converse(stream, &shared)).await {
                shared.1.own.add(Event::Failed);
            }
        });
    };
    listener.serve(connections, spawn).await
}

async fn converse(stream: TcpStream, shared: &(config::Admin, Sources)) -> hyper::Result<()> {
    let (settings, sources) = shared;
    let answer = service_fn(|request| async move { Ok::<_, Infallible>(answer(&request, settings, sources)) });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(PATIENCE).max_buf_size(16 << 10).keep_alive(false);
    http.serve_connection(TokioIo::new(stream), answer).await
}

fn answer(request: &Request<Incoming>, settings: &config::Admin, sources: &Sources) -> Response<Full<Bytes>> {
    let path = request.uri().path();
    let refuse = |event, status, why: &str| {
        sources.own.add(event);
        text(status, why)
    };
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return refuse(Event::NotAllowed, StatusCode::METHOD_NOT_ALLOWED, "this address is only read from\n");
    }
    // The page holds nothing; its script asks for the token.
    let open = matches!(path, "/" | "/healthz" | "/readyz");
    if !open && settings.token.is_none() && !is_local_name(request) {
        let why = "this address is asked for by an IP address or as localhost\n";
        return refuse(Event::ForeignHost, StatusCode::MISDIRECTED_REQUEST, why);
    }
    if !open && !may(request, settings) {
        let why = "a bearer token is wanted: admin.token_file\n";
        let mut refused = refuse(Event::Unauthorized, StatusCode::UNAUTHORIZED, why);
        refused.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        return refused;
    }
    let response = match path {
        "/" => page(),
        "/metrics" => match metrics::exposition(sources) {
            Ok(body) => typed("application/openmetrics-text; version=1.0.0; charset=utf-8", body),
            Err(e) => text(StatusCode::INTERNAL_SERVER_ERROR, &format!("{e}\n")),
        },
        "/status" => match serde_json::to_string(&Status::now(sources)) {
            Ok(body) => typed("application/json", body),
            Err(e) => text(StatusCode::INTERNAL_SERVER_ERROR, &format!("{e}\n")),
        },
        "/healthz" => match &*sources.health.stuck() {
            "" => text(StatusCode::OK, "ok\n"),
            stuck => text(StatusCode::SERVICE_UNAVAILABLE, &format!("{stuck} does not poll\n")),
        },
        "/readyz" if sources.health.is_ready() => text(StatusCode::OK, "ok\n"),
        "/readyz" => text(StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
        _ => {
            let why = "there are /, /metrics, /status, /healthz and /readyz\n";
            return refuse(Event::NotFound, StatusCode::NOT_FOUND, why);
        }
    };
    sources.own.add(Event::Answered);
    response
}

/// The page, whose script and style are the only ones that a browser runs, and which talks to this address alone.
fn page() -> Response<Full<Bytes>> {
    let mut random = [0; 16];
    if let Err(e) = getrandom::fill(&mut random) {
        return text(StatusCode::INTERNAL_SERVER_ERROR, &format!("{e}\n"));
    }
    let nonce = format!("{:032x}", u128::from_ne_bytes(random));
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src data:; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let mut response = typed("text/html; charset=utf-8", include_str!("page.html").replace(NONCE, &nonce));
    let headers = response.headers_mut();
    headers.extend(HeaderValue::try_from(policy).map(|policy| (CONTENT_SECURITY_POLICY, policy)));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    response
}

/// Whether a request names this host by an address, as localhost, or not at all, as browsers never do. A page
/// of another site, whose name was made to lead here, names that.
fn is_local_name(request: &Request<Incoming>) -> bool {
    let Some(named) = request.headers().get(HOST) else { return true };
    let named = named.to_str().unwrap_or_default();
    let name = named
        .rsplit_once(':')
        .filter(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()))
        .map_or(named, |(name, _)| name);
    let address = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
}

/// Whether a request carries the token that is wanted.
fn may(request: &Request<Incoming>, settings: &config::Admin) -> bool {
    let Some(token) = &settings.token else { return true };
    let given = request.headers().get(AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    given.is_some_and(|given| given.ct_eq(token.as_bytes()).into())
}

fn text(status: StatusCode, body: &str) -> Response<Full<Bytes>> {
    let mut response = typed("text/plain; charset=utf-8", body.to_owned());
    *response.status_mut() = status;
    response
}

fn typed(kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
