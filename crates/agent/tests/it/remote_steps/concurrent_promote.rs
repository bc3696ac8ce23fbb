//! Two jobs that publish versions at the same time.

use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{Method, header};
use axum::response::Response;
use muster_oci::copy;
use muster_test_prerequisites::DockerRegistry;
use tokio::sync::Mutex;

use super::registry::{client, generic, layer, push};
use super::*;

type OtherJob = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Proxy of a registry. Before it forwards the first upload for the tag `latest`, it runs another job to its end.
#[derive(Clone)]
struct Proxy {
    registry: String,
    other_job: Arc<Mutex<Option<OtherJob>>>,
    http: reqwest::Client,
}

impl Proxy {
    async fn start(registry: &DockerRegistry, other_job: OtherJob) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let other_job = Arc::new(Mutex::new(Some(other_job)));
        let proxy = Self { registry: registry.host().to_owned(), other_job, http: reqwest::Client::new() };
        let app = Router::new().fallback(Self::forward).with_state(proxy);
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        address
    }

    async fn forward(State(proxy): State<Self>, request: Request) -> Response {
        let (parts, body) = request.into_parts();
        if parts.method == Method::PUT
            && parts.uri.path().ends_with("/manifests/latest")
            && let Some(other_job) = proxy.other_job.lock().await.take()
        {
            other_job.await;
        }
        let url = format!("http://{}{}", proxy.registry, parts.uri);
        // `Host` is forwarded unchanged, so that the upload URLs that the registry returns point to the proxy.
        let request = proxy.http.request(parts.method, url).headers(parts.headers);
        let answer = request.body(to_bytes(body, usize::MAX).await.unwrap()).send().await.unwrap();
        let mut response = Response::new(Body::empty());
        *response.status_mut() = answer.status();
        *response.headers_mut() = answer.headers().clone();
        response.headers_mut().remove(header::CONTENT_LENGTH);
        *response.body_mut() = Body::from(answer.bytes().await.unwrap());
        response
    }
}

#[tokio::test]
async fn lower_version_that_is_published_at_the_same_time_does_not_keep_latest() {
    let Some(registry) = DockerRegistry::start(false) else { return };
    let mut fixture = Fixture::new().await;
    let lower = push(&registry, "lower", &[(generic(), layer("lower", &["."]))]).await;
    let higher = push(&registry, "higher", &[(generic(), layer("higher", &["."]))]).await;
    let (from, to) = (client(&registry, "g/echo"), client(&registry, "g/to"));
    let other_job = async move {
        copy(&from, "higher", &to, &["1.3.0", "1.3", "1", "latest"]).await.unwrap();
    };
    let proxy = Proxy::start(&registry, Box::pin(other_job)).await;
    let inputs = json!({"from_image": format!("{proxy}/g/echo:lower"), "to_registry": proxy, "to_repository": "g/to", "to_version": "1.2.3"});
    let list = json!([{"name": "promote", "step": "dist://step/oci/promote", "inputs": inputs}]);
    let (log, result) = fixture.run_list(list, &[]).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    assert!(log.contains(&format!("moved image={proxy}/g/to:latest to 1.3.0, which was published meanwhile")), "{log}");
    let to = client(&registry, "g/to");
    for (tag, digest) in [("1.2.3", lower), ("1.2", lower), ("1.3", higher), ("1", higher), ("latest", higher)] {
        assert_eq!(to.digest_of(tag).await.unwrap(), Some(digest), "{tag}: {log}");
    }
}
