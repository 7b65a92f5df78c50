"""What handlers are given: jobs, the line they wait in, admission, stored records, access and addresses.

Imports html; no widget. Start at ``services``.
"""
