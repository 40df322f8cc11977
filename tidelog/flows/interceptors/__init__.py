"""Interceptors: what is done to bytes before a codec reads them, and after it wrote them."""
