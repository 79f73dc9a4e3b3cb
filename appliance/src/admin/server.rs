//! The HTTP server of the admin address, on a thread of its own.

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use berth_lobby::{Limits, Lobby};
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use subtle::ConstantTimeEq as _;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::oneshot,
    time::timeout,
};

use super::{Sources, Status, metrics};
use crate::config;

/// Connections at a time; who has been here for longest without an answer gives way to a newcomer.
const LIMITS: Limits = Limits { strangers: 64, guests: 0, per_peer: 0 };

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
    /// Binds the address and serves what `sources` hold.
    pub(crate) fn start(settings: config::Admin, sources: Sources) -> io::Result<Self> {
        let listener = berth_lobby::listen(settings.listen)?;
        let local = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new().name("berth-admin".into()).spawn(move || {
            runtime.block_on(async {
                let listener = match TcpListener::from_std(listener) {
                    Ok(listener) => listener,
                    Err(e) => return tracing::error!("admin {local}: {e}"),
                };
                tokio::select! {
                    () = serve(listener, Arc::new((settings, sources))) => {}
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Self { local, stop: Some(stop), thread: Some(thread) })
    }

    /// Where it is reached.
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

async fn serve(listener: TcpListener, shared: Arc<(config::Admin, Sources)>) {
    let lobby = Lobby::<()>::new(LIMITS);
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // A connection that was gone before it was accepted, or no descriptor for it: later.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (shared, (mut stranger, _)) = (shared.clone(), lobby.enter());
        tokio::spawn(async move {
            // Slow peers are cut off; a peer's failure is its own matter.
            tokio::select! {
                _ = timeout(2 * PATIENCE, converse(stream, &shared)) => {}
                () = stranger.displaced() => {}
            }
        });
    }
}

async fn converse(stream: TcpStream, shared: &(config::Admin, Sources)) -> hyper::Result<()> {
    let (settings, sources) = shared;
    let answer = service_fn(|request| async move { Ok::<_, Infallible>(answer(&request, settings, sources)) });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(PATIENCE).max_buf_size(16 << 10).keep_alive(false);
    http.serve_connection(TokioIo::new(stream), answer).await
}

fn answer(request: &Request<Incoming>, settings: &config::Admin, sources: &Sources) -> Response<Full<Bytes>> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return text(StatusCode::METHOD_NOT_ALLOWED, "this address is only read from\n");
    }
    let probe = matches!(request.uri().path(), "/healthz" | "/readyz");
    if !probe && !may(request, settings) {
        let mut refused = text(StatusCode::UNAUTHORIZED, "a bearer token is wanted: admin.token_file\n");
        refused.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        return refused;
    }
    match request.uri().path() {
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
        _ => text(StatusCode::NOT_FOUND, "there are /metrics, /status, /healthz and /readyz\n"),
    }
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
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
