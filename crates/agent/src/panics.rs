//! Answers `INTERNAL` to a call if its handler panics (`docs/spec/steps.md`, section 6.5). Without this answer, the
//! panic would close the connection with all its calls.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::BoxFuture;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tower::Service;

#[derive(Debug, Clone)]
pub(crate) struct CatchPanics<S>(pub(crate) S);

impl<S> Service<Request<Body>> for CatchPanics<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let path = request.uri().path().to_owned();
        let called = catch_unwind(AssertUnwindSafe(|| self.0.call(request)));
        Box::pin(async move {
            let answered = match called {
                Ok(answer) => AssertUnwindSafe(answer).catch_unwind().await,
                Err(panic) => Err(panic),
            };
            answered.unwrap_or_else(|panic| Ok(panic_response(&path, &*panic)))
        })
    }
}

fn panic_response(path: &str, panic: &(dyn Any + Send)) -> Response<Body> {
    let message = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    tracing::error!(path, message, "the handler of a call panicked");
    Status::internal("the agent panicked during the call; see the agent's log").into_http()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn c113_panic_of_a_handler_is_an_internal_error() {
        type HandlerResult = Result<Response<Body>, String>;
        let panics_when_called =
            tower::service_fn(|_: Request<Body>| -> std::future::Ready<HandlerResult> { panic!("called") });
        let polled = |_: &mut Context<'_>| -> Poll<HandlerResult> { panic!("polled") };
        let panics_when_polled = tower::service_fn(move |_: Request<Body>| std::future::poll_fn(polled));
        let answers = [
            CatchPanics(panics_when_called).call(Request::default()).await,
            CatchPanics(panics_when_polled).call(Request::default()).await,
        ];
        for answer in answers {
            let status = Status::from_header_map(answer.unwrap().headers()).unwrap();
            assert_eq!(status.code(), tonic::Code::Internal);
        }
        let works = tower::service_fn(|_: Request<Body>| async { Ok::<_, String>(Response::new(Body::default())) });
        assert!(CatchPanics(works).call(Request::default()).await.unwrap().headers().is_empty());
    }
}
