"""packed"""
