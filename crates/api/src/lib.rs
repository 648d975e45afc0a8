//! HTTP: the OpenAI routes and the operations routes.
