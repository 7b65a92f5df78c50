"""The page: panels assembled by ``layout``, pure figures in ``figures``, form controls generated from methods."""
